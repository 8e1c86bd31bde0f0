"""A Flower app as its PyTorch quickstart lays it out."""
