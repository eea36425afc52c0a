"""The statements of a training run that ranks execute and scripts print. No torch import here."""
