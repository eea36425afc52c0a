"""Checking a model of the user's own: worlds for its meshes, and one report. No torch import."""

from fuzzshard.checking.check import check_subject as check_subject
from fuzzshard.checking.report import Report as Report
from fuzzshard.checking.report import TrainingReport as TrainingReport
