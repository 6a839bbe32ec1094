"""A labelling project: a folder with a pool, a ledger of everything that happened, and what is asked next.

The path of a label from a CSV file to the training set has two halves. `coresift ingest` only records it:

1. `cli.projects.ingest` calls `Project.ingest_file`, which holds the project's lock until answers are added.
2. `answers.BatchFile.read` reads the file once, and computes its fingerprint.
3. `labellers.files.read_answers` finds the columns, leaves out rows without an answer, checks ids and labels,
   and returns an `Answer` for each answered item. If anything is wrong, it raises an error, and nothing is
   added.
4. `Ledger.add_answers` calls `outcomes.outcome`, which tells what each answer changes. New labels,
   corrections and skips become events in `ledger.sqlite`, in one transaction. Answers that agree with what is
   known, or that are outdated, are only counted.

The next `coresift select` fits a model to all current labels:

5. `cli.projects.select` calls `Project.next_round`. If the request is the same and nothing happened since the
   last round, it returns that round again, unless ``more`` is set. If items are pending and no answer came in
   since, it raises an error, unless ``more`` or ``replace`` is set. Otherwise it calls `loop.ask_next`.
6. `loop.ask_next` calls `rounds.NextBatch.fit`, and then chooses a batch with the model.
7. `NextBatch.fit` calls `OpenProject.labels_and_values`, which calls `Ledger.labels`. The last event of an
   item is its state, so only its last label counts. The texts of labels become numbers or class names.
8. `NextBatch.fit` passes the `Labelled` records and the target array y to `OpenProject.fit_to`, which reads
   the rows of the labelled items from `features.npy` and fits the model that `model.default_model` returns.
   With too few labels, or if all are the same, there is no model.
9. The estimator learns. `NetworkClassifier._learn_targets` turns class names into indices into ``classes_``.
   For numbers, `NeuralLinearRegressor._train` standardises them. `NeuralLinearRegressor._calibrated` first
   trains additional networks, each without a part of the labels (calibration folds), to estimate noise; the
   final networks train on all labels.

Answers from other sources, such as Label Studio, come through `Labeller.collect` and `OpenProject.add` to the
same `Ledger.add_answers`. Labels that exist when a project begins are recorded by `Ledger.create`.

Words: a *label* is a number or a class, as text. An `Answer` is what somebody says about one item: a label or
a skip. An *import* is one file that was ingested, or one pull from Label Studio. An *event* is one thing that
happened to an item: it was chosen, labelled, skipped, excluded or reopened. "Labelled" is a kind of event,
and also the *state* of an item whose last event is of this kind. A `Labelled` is the record of an item in
this state, with its current label; a variable named ``labelled`` is a list of these records. In
`coresift.select`, ``labelled=`` are the rows of features of these items.
"""
