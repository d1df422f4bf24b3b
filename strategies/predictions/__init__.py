"""Published measurements beside what placer predicts of them: a row of a table is built, laid out, estimated, compared.

    table --read_rows--> Row --shape_of, machines, settings, layouts--> Plan --estimate--> Prediction --slices--> errors

Each row is predicted as a user's plan is: its model is made from the printed sizes and captured, its layout becomes a
`Plan`, and the code that searches use estimates it. Nothing looks at the name of a dataset. What a row uses that is
estimated otherwise is a note of its prediction; what there is no plan for is a `Missing` with the reason.
"""
