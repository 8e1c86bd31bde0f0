"""The server: it plays a plan round by round, and writes down what that cost before it lets anything out."""
