"""Where a model looks: pictures of its attention, and the pointing game against what is there."""
