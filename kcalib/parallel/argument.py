"""The argument ``backend=`` of public functions.

`in_parallel` opens transport and journal for a call and closes them afterwards. The function receives a `Run`, which is
passed down to `_pairs.dispatch.backend_for`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from kcalib._input.source import Source, check_left_to_source, is_source

if TYPE_CHECKING:
    from kcalib.parallel.backend import Run
    from kcalib.parallel.transport import Parallel

ALL = 2**62  # samples, if their number is unknown

F = TypeVar("F", bound=Callable[..., Any])


def as_parallel(backend: Any) -> Parallel:
    """Return the transport for the argument `backend`."""
    from concurrent import futures

    from kcalib.parallel.dask import Dask, is_client
    from kcalib.parallel.executor import Executor
    from kcalib.parallel.transport import Parallel

    if isinstance(backend, Parallel):
        return backend
    if isinstance(backend, futures.Executor):
        return Executor(backend)
    if is_client(backend):
        return Dask(backend)
    expected = (
        "expected the name of a backend, an object of kcalib.parallel, such as Processes(workers=4), a "
        "concurrent.futures.Executor, or a client of Dask"
    )
    if isinstance(backend, type) and issubclass(backend, Parallel):
        raise TypeError(f"`backend` is the class {backend.__name__}; pass an object, {backend.__name__}(...)")
    raise TypeError(f"`backend` is {backend!r}, {expected}")


@contextmanager
def opened(transport: Parallel) -> Iterator[Run]:
    """Open a transport and its journal for a call."""
    from kcalib.parallel.backend import Run  # imported late, to keep `import kcalib` fast

    run, failed = Run(transport), True
    with run.with_journal():
        run.held = run.parallel.open()
        try:
            yield run
            failed = False
        finally:
            run.parallel.close(run.held, failed)


def in_parallel(function: F) -> F:
    """Open the transport in ``backend=`` for calls of `function`; names and None are passed on.

    A source of samples as first argument is read as a whole. If the transport has the arguments already, as Dask has
    Dask arrays, the call is made there.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        backend = kwargs.get("backend")
        if backend is None or isinstance(backend, str):
            return function(*args, **kwargs)
        del kwargs["backend"]
        from kcalib.parallel.backend import Run

        if isinstance(backend, Run):  # a call within a call
            return _called(function, backend, *args, **kwargs)
        transport = as_parallel(backend)
        remote_call = transport.elsewhere([*args, *kwargs.values()])
        if remote_call is not None:
            return remote_call(call, *args, **kwargs)

        def call_here() -> Any:
            with opened(transport) as run:
                return _called(function, run, *args, **kwargs)

        return transport.agreed(call_here)

    return call  # type: ignore[return-value]


def _called(function: Callable[..., Any], run: Run, *args: Any, **kwargs: Any) -> Any:
    """Call the function, with all samples of a source."""
    source = args[0] if args else kwargs.get("y_true")
    if not isinstance(source, Source):
        return function(*args, backend=run, **kwargs)
    kwargs.pop("y_true", None)
    is_source(source, args[1] if len(args) > 1 else kwargs.pop("y_pred", None))
    check_left_to_source(kwargs.pop("classes", None), kwargs.pop("from_logits", None))
    before = source.fingerprint()
    result = function(*_samples(source), *args[2:], backend=run, **kwargs)
    if source.fingerprint() != before:
        raise ValueError(f"{source.describe()} was changed while it was read; call again when nobody writes to it")
    return result


def _samples(source: Source) -> tuple[Any, Any]:
    """Return all labels or targets, and predictions."""
    return source.read(0, source.n) if source.n is not None else next(iter(source.chunks(ALL)))
