"""A plan's steps beside one device's."""
