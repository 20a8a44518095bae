"""A mark for tests with few samples that are about something else than the few events that these leave open."""

import pytest

FEW_EVENTS = pytest.mark.filterwarnings("ignore:.* uncertain events, and it needs")
