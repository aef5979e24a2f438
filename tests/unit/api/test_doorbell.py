from api.doorbell import CeleryDoorbell


def test_a_broker_that_is_away_never_stops_anybody() -> None:
    bell = CeleryDoorbell("unix:///no/such/socket")
    for _ in range(3000):
        bell.ring()
    bell.close()
    bell.close()
