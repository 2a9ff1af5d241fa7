"""Parameters that a forward reads past their layers."""
