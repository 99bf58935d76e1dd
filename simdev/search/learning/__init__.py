"""What learners share: their settings, how they begin, processes that work for them."""
