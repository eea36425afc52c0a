"""What people read: the live panel, the drawing of a case."""
