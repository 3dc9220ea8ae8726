"""Tables and figures of the papers, made again: an experiment is one module, and one line in ``registry``."""
