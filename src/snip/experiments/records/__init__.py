"""What `results/` holds of an experiment, and what is made of it: tables, captions, figures."""
