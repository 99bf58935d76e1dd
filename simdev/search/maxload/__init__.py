"""dnn-partitioning (Tarnawski et al., NeurIPS 2020): splits of the least largest load."""
