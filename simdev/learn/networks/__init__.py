"""Networks of learners, and how they are trained: controllers, attention, REINFORCE, PPO."""
