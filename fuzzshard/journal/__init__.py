"""The journal of a campaign directory: every case and every event, in SQLite, as they happen."""
