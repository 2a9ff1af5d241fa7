"""From a model and data to one score per connection."""
