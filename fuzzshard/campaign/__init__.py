"""Drawing, judging, confirming, shrinking and saving, as a stream of events."""
