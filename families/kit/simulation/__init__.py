"""What several families' simulators share: accounting, roofline's traffic, timeline lanes and
pages.
"""
