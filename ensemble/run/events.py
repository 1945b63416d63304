"""TensorBoard's event files, written by tensorboardX, which takes a second to import."""

import logging
import os
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from google.protobuf import struct_pb2
from tensorboardX import summary
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto import api_pb2, event_pb2, plugin_hparams_pb2, summary_pb2

# It would warn of every NaN, without its name; a run says itself what has become non-finite.
logging.getLogger("tensorboardX.x2num").setLevel(logging.ERROR)

# TensorBoard's table of runs shows five columns at first: those that are marked, then by name.
_FIRST_COLUMNS = frozenset({"dataset", "ensemble_size", "learning_rate", "method", "model"})


class EventFile:
    """Appends events to a file of its own.

    Args:
        directory: of the run; it is there.
        purge_step: TensorBoard drops what it has of this run from this step on.
    """

    def __init__(self, directory: str | os.PathLike[str], purge_step: int):
        prefix = pathlib.Path(directory, "run")
        # EventsWriter counts seconds; two starts within one must not share a file.
        self._events = EventsWriter(str(prefix), filename_suffix=f".{time.time_ns()}")
        self.path = pathlib.Path(self._events._file_name)
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._events.write_event(
            event_pb2.Event(wall_time=time.time(), step=purge_step, session_log=start)
        )

    def scalar(self, step: int, tag: str, value: float) -> None:
        """Writes a number, which TensorBoard has in float32."""
        self._write(step, summary.scalar(tag, value))

    def image(self, step: int, tag: str, image: np.ndarray) -> None:
        """Writes a picture [H, W, 3] uint8."""
        self._write(step, summary.image(tag, image, dataformats="HWC"))

    def histogram(self, step: int, tag: str, values: np.ndarray) -> None:
        """Writes a histogram of values [N]; large ones that are alike have none."""
        try:
            made = summary.histogram(tag, values, bins="auto")
        except ValueError:  # NumPy's, where float64 cannot tell the edges of bins apart.
            return
        self._write(step, made)

    def hparams(self, hparams: Mapping[str, Any], metrics: Sequence[str]) -> None:
        """Enters the run in TensorBoard's table of runs; the arguments are those of `Writer`."""
        values = {k: _hparam_value(v) for k, v in hparams.items()}
        experiment = api_pb2.Experiment(
            hparam_infos=[
                _hparam_info(k, v, is_first=k in _FIRST_COLUMNS) for k, v in values.items()
            ],
            metric_infos=[api_pb2.MetricInfo(name=api_pb2.MetricName(tag=tag)) for tag in metrics],
        )
        start = plugin_hparams_pb2.SessionStartInfo(
            hparams={k: v for k, v in values.items() if v.WhichOneof("kind") is not None}
        )
        for tag, part in (
            ("experiment", plugin_hparams_pb2.HParamsPluginData(experiment=experiment)),
            ("session_start_info", plugin_hparams_pb2.HParamsPluginData(session_start_info=start)),
        ):
            self._write(0, _hparams_summary(f"_hparams_/{tag}", part))

    def charts(self, charts: Mapping[str, str]) -> None:
        """Lays curves over each other, in the tab Custom Scalars; `charts` is as of `Writer`."""
        lines = {title: ("Multiline", [f"{pattern}$"]) for title, pattern in charts.items()}
        self._write(0, summary.custom_scalars({"members": lines}))

    def flush(self) -> None:
        """Brings what was written to the disk."""
        self._events.flush()

    def close(self) -> None:
        """Flushes, and closes the file."""
        self._events.close()

    def _write(self, step: int, made: Any) -> None:
        self._events.write_event(event_pb2.Event(wall_time=time.time(), step=step, summary=made))


def _hparam_value(value: Any) -> Any:
    """A value as protobuf has it; None has none, for TensorBoard cannot sort words and numbers."""
    if value is None:
        return struct_pb2.Value()
    if isinstance(value, bool):
        return struct_pb2.Value(bool_value=value)
    if isinstance(value, int | float):
        return struct_pb2.Value(number_value=value)
    return struct_pb2.Value(string_value=str(value))


def _hparam_type(value: Any) -> Any:
    return {
        "bool_value": api_pb2.DATA_TYPE_BOOL,
        "number_value": api_pb2.DATA_TYPE_FLOAT64,
        "string_value": api_pb2.DATA_TYPE_STRING,
    }.get(value.WhichOneof("kind"), api_pb2.DATA_TYPE_UNSET)


def _hparam_info(name: str, value: Any, is_first: bool) -> Any:
    """A column of TensorBoard's table of runs."""
    info = api_pb2.HParamInfo(name=name, type=_hparam_type(value))
    if is_first:  # The field `differs`, which this copy of TensorBoard's protobuf is too old for.
        info.MergeFromString(b"\x38\x01")
    return info


def _hparams_summary(tag: str, part: Any) -> Any:
    """A summary that is metadata of TensorBoard's plug-in alone."""
    data = summary_pb2.SummaryMetadata.PluginData(
        plugin_name="hparams", content=part.SerializeToString()
    )
    metadata = summary_pb2.SummaryMetadata(plugin_data=data)
    return summary_pb2.Summary(value=[summary_pb2.Summary.Value(tag=tag, metadata=metadata)])
