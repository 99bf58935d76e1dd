"""GDP: Generalized Device Placement for Dataflow Graphs (Zhou, Roy, Abdolrashidi and others, 2019,
arXiv 1910.01578).
"""
