"""What people read: the plan as a table, predicted beside measured, and the same as JSON documents with units."""
