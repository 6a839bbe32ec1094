"""Classes that people write in several ways."""

from coresift.labelling.labels import alike_classes, nearest_class


def test_classes_that_are_alike():
    assert alike_classes(["Yes", "no", "yes", "New York", "newyork", "YES"]) == [
        ["Yes", "yes", "YES"],
        ["New York", "newyork"],
    ]
    assert alike_classes(["yes", "no", "eyes"]) == []


def test_of_classes_that_differ_by_case_the_first_is_meant():
    assert nearest_class("bil", ["bill", "Bill"]) == "bill" and nearest_class("ship", ["bill"]) is None
