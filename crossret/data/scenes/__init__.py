"""Rendered scenes: pictures, captions, regions and features, made from a seed."""
