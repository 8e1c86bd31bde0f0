"""Tables and plots, from plans and run folders."""
