"""The paper's data sets, whole in memory."""
