"""The lab: every table and figure of the papers, measured anew and judged.

Guarantees that a verdict rests on figures of one run, that all contenders of a run gave the same matches, and that a
contender that is missing makes a claim fail. Refuses to know how filters work: it uses the public face only.

``tamis lab list``, ``tamis lab run agile-exp1``, ``tamis lab report``; see the guide of the lab.
"""
