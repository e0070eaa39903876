"""What an extend costs as plain TP and as CP: terms, their fit to measured extends, the choice, the calibration file.

Lowest first: ``shape`` (an extend's lengths), ``terms`` (its work, by mode), ``model`` (seconds), ``choice`` (CP or
TP), ``fit`` (measurements to a model), ``shapes`` (what to measure), ``calibration`` (the file).
"""
