"""The questions that an evaluation answers: functions of its sections that return one `Finding`.

What counts as an answer, thresholds and p-values, is here. How it is said is in
`ensemble.evaluation.words`.
"""
