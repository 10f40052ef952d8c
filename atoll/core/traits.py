"""What an algorithm declares of itself, for whoever builds, measures or attacks a run of it."""

from dataclasses import dataclass

from atoll.core.groups import ClientGroups


@dataclass(frozen=True)
class Traits:
    """Nothing is special unless it is declared. Wrappers start from the traits of what they wrap."""

    personal: bool = False  # a client predicts with a model of its own
    partial: bool = False  # the server's model is not whole: central metrics are the mean over clients' models
    pooled: bool = False  # all data is in one place, with one client
    adapts: tuple[str, ...] = ()  # settings that the server moves from round to round: in its state, by these names
    records: tuple[str, ...] = ()  # entries of the server's state that stand in a round's line, under `diagnostics`
    counts_clients: bool = False  # the server keeps a mean over all clients' states, so it knows how many there are
    public: bool = False  # server and clients look at public examples, whose inputs all of them have
    places: bool = (
        False  # batches say under "place" which of the client's examples they have; asks for `largest_client`
    )
    draws: bool = False  # its steps draw from the key of the batch
    places_by_client: bool = False  # what a client sends has places of its own: a sum shows them by name
    groups: ClientGroups | None = None  # clients differ in kind: each is sent the number of its group
