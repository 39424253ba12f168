import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosparse.methods.autotune import AlphaTuner, AutoTune, ReferenceRecorder, threshold_decay
from autosparse.methods.target import TargetController
from autosparse.schedules import annealing

REFERENCE = tuple(2.0 - 0.1 * epoch for epoch in range(9))
SIGMOID_COSINE = partial(annealing, "sigmoid-cosine")


def tuner(**fields: Any) -> AlphaTuner:
    return AlphaTuner(AutoTune(**{"reference": REFERENCE, **fields}))


def run(tuner: AlphaTuner, factor: float) -> AlphaTuner:
    for epoch in range(tuner.config.epochs):
        tuner.observe(epoch, factor * REFERENCE[epoch])
    return tuner


class TestAutoTuneConfig:
    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("epochs", 0),
            ("epochs", 2.5),
            ("epochs", True),
            ("tolerance", -0.1),
            ("tolerance", math.nan),
            ("up", 0.0),
            ("up", math.inf),
            ("down", 1.0),
            ("down", -0.1),
            ("start", 0.0),
            ("start", 1.1),
        ],
    )
    def test_bad_values_are_named(self, field: str, value: Any) -> None:
        with pytest.raises(ValueError, match=f"{field} is .*allowed: "):
            AutoTune(**{field: value})

    @pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0, -1.0, "1.0", True])
    def test_reference_losses_are_finite_and_positive(self, bad: Any) -> None:
        with pytest.raises(ValueError, match=r"loss of epoch 2 is .*finite numbers above 0"):
            AutoTune(reference=[1.0, 1.0, bad, *REFERENCE])

    def test_too_few_losses_gives_both_numbers(self) -> None:
        with pytest.raises(ValueError, match=r"tunes for 9 epochs.*holds 8 losses"):
            AutoTune(reference=REFERENCE[:8])
        assert len(AutoTune(epochs=8, reference=REFERENCE[:8]).losses()) == 8

    def test_no_reference_is_an_error_only_when_used(self) -> None:
        config = AutoTune()
        with pytest.raises(ValueError, match="ReferenceRecorder"):
            config.losses()
        with pytest.raises(ValueError, match="ReferenceRecorder"):
            AlphaTuner(config)

    def test_a_list_changed_later_does_not_change_the_config(self) -> None:
        losses = list(REFERENCE)
        config = AutoTune(reference=losses)
        losses[0] = 77.0
        assert config.losses() == REFERENCE
        assert hash(config) == hash(AutoTune(reference=REFERENCE, settings={"batch_size": 32}))

    def test_plain_json_list(self, tmp_path: Path) -> None:
        path = tmp_path / "losses.json"
        path.write_text(json.dumps(REFERENCE))
        assert AutoTune(reference=path).losses() == REFERENCE
        assert AutoTune(reference=str(path), settings={"batch_size": 3}).settings_difference() == []

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("{", "not JSON"),
            ('{"format": "other"}', "neither a list of losses nor"),
            ("3", "neither a list of losses nor"),
            ('{"format": "autosparse-reference", "version": 2, "losses": []}', "version 2; this release reads 1"),
            ('{"format": "autosparse-reference", "version": 1, "losses": {}}', "damaged"),
            ("[1.0, NaN]", "loss of epoch 1 is nan"),
            ("[1.0, 2.0]", "holds 2 losses"),
        ],
    )
    def test_bad_files(self, tmp_path: Path, text: str, message: str) -> None:
        path = tmp_path / "losses.json"
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            AutoTune(reference=path).losses()

    def test_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"none\.json does not exist"):
            AutoTune(reference=tmp_path / "none.json").losses()


class TestReferenceRecorder:
    def test_round_trip(self, tmp_path: Path) -> None:
        path = tmp_path / "new folder" / "dense.json"
        recorder = ReferenceRecorder(path, settings={"batch_size": 32})
        for count, loss in enumerate(REFERENCE, start=1):
            recorder.record(loss)
            assert json.loads(path.read_text()) == {
                "format": "autosparse-reference",
                "version": 1,
                "losses": list(REFERENCE[:count]),
                "settings": {"batch_size": 32},
            }
        assert AutoTune(reference=path).losses() == REFERENCE
        assert [entry.name for entry in path.parent.iterdir()] == ["dense.json"]

    def test_an_existing_file_is_kept(self, tmp_path: Path) -> None:
        path = tmp_path / "dense.json"
        path.write_text("[1.0]")
        with pytest.raises(ValueError, match=r"dense\.json exists already.*overwrite=True"):
            ReferenceRecorder(path)
        assert path.read_text() == "[1.0]"
        ReferenceRecorder(path, overwrite=True).record(3.0)
        assert json.loads(path.read_text())["losses"] == [3.0]

    def test_a_bad_loss_loses_nothing(self, tmp_path: Path) -> None:
        path = tmp_path / "dense.json"
        recorder = ReferenceRecorder(path)
        recorder.record(2.0)
        with pytest.raises(ValueError, match="loss of epoch 1 is nan"):
            recorder.record(math.nan)
        assert recorder.losses == [2.0]
        assert json.loads(path.read_text())["losses"] == [2.0]

    def test_settings_must_fit_into_json(self, tmp_path: Path) -> None:
        with pytest.raises(TypeError, match="plain values that JSON can hold"):
            ReferenceRecorder(tmp_path / "a.json", settings={"loader": object()})
        with pytest.raises(TypeError, match="plain values that JSON can hold"):
            AutoTune(settings={"loader": object()})

    def test_other_settings_are_called_out(self, tmp_path: Path) -> None:
        path = tmp_path / "dense.json"
        recorded = {"batch_size": 256, "crop": (32, 32), "label_smoothing": 0.1, "steps_per_epoch": 40}
        recorder = ReferenceRecorder(path, settings=recorded)
        recorder.record(1.0)
        assert AutoTune(reference=path, settings=recorded).settings_difference() == []
        assert AutoTune(reference=path).settings_difference() == []
        other = {"batch_size": 128, "crop": (32, 32), "label_smoothing": 0.1, "seed": 3}
        assert AutoTune(reference=path, settings=other).settings_difference() == [
            "the reference was recorded with batch_size = 256, this run has 128",
            "this run has seed = 3, the reference does not say its own",
            "the reference has steps_per_epoch = 40, this run does not say its own",
        ]


class TestAlphaTuner:
    @pytest.mark.parametrize(("factor", "down", "alpha"), [(2.0, 0.005, 0.7757), (0.5, 0.005, 0.4779), (0.5, 0.01, 0.4568)])
    def test_reach_of_nine_epochs(self, factor: float, down: float, alpha: float) -> None:
        assert run(tuner(down=down), factor).alpha == pytest.approx(alpha, abs=5e-5)

    def test_two_downs_and_six_ups(self) -> None:
        tuned = tuner(epochs=8)
        for epoch in range(8):
            tuned.observe(epoch, REFERENCE[epoch] * (1.0 if epoch < 2 else 1.1))
        assert tuned.alpha == pytest.approx(0.663, abs=5e-4)

    def test_the_limit_itself_raises_alpha(self) -> None:
        exact = tuner(reference=[2.0] * 9, tolerance=0.25)
        assert exact.observe(0, 2.5) == pytest.approx(0.525)
        assert exact.observe(1, math.nextafter(2.5, 0.0)) == pytest.approx(0.525 * 0.995)

    def test_every_constant_counts(self) -> None:
        assert tuner(start=0.4).alpha == 0.4
        assert tuner(up=0.1).observe(0, 9.0) == pytest.approx(0.55)
        assert tuner(down=0.1).observe(0, 0.1) == pytest.approx(0.45)
        assert tuner(tolerance=9.0).observe(0, 4.0) < 0.5
        assert run(tuner(epochs=1), 2.0).tuned

    @given(
        losses=st.lists(st.floats(0.01, 100.0), min_size=9, max_size=9),
        start=st.floats(0.01, 1.0),
        up=st.floats(0.01, 3.0),
        down=st.floats(0.0, 0.99),
    )
    def test_alpha_stays_in_the_unit_interval(self, losses: list[float], start: float, up: float, down: float) -> None:
        tuned = tuner(start=start, up=up, down=down)
        for epoch, loss in enumerate(losses):
            assert 0.0 <= tuned.observe(epoch, loss) <= 1.0

    @given(losses=st.lists(st.floats(0.01, 100.0), min_size=9, max_size=9))
    def test_alpha_stays_in_the_published_reach(self, losses: list[float]) -> None:
        tuned = tuner()
        for epoch, loss in enumerate(losses):
            tuned.observe(epoch, loss)
        assert 0.4779 < tuned.alpha < 0.7757

    def test_alpha_is_clamped_at_one(self) -> None:
        assert tuner(start=0.99).observe(0, 9.0) == 1.0

    def test_history_and_tuned(self) -> None:
        tuned = tuner(epochs=2)
        seen = [tuned.tuned]
        for epoch, loss in enumerate((2.0, 1.95)):
            tuned.observe(epoch, loss)
            seen.append(tuned.tuned)
        assert seen == [False, False, True]
        assert tuned.history == [(0, 2.0, 2.0, 0.5 * 0.995), (1, 1.95, 1.9, 0.5 * 0.995 * 1.05)]
        assert tuned.observe(2, 50.0) == 0.5 * 0.995 * 1.05
        assert len(tuned.history) == 2

    def test_epochs_come_in_order_and_losses_are_finite(self) -> None:
        tuned = tuner()
        with pytest.raises(ValueError, match="expected the loss of epoch 0 and was given epoch 1"):
            tuned.observe(1, 1.0)
        with pytest.raises(ValueError, match="loss of epoch 0 is inf"):
            tuned.observe(0, math.inf)
        tuned.observe(0, 1.0)
        with pytest.raises(ValueError, match="expected the loss of epoch 1 and was given epoch 0"):
            tuned.observe(0, 1.0)
        with pytest.raises(ValueError, match="expected the loss of epoch 1 and was given epoch 12"):
            tuned.observe(12, 1.0)

    @pytest.mark.parametrize(("epoch", "factor"), [(9, 1.0), (10, 0.999702), (11, 0.998809), (88, 0.042296), (89, 0.035622)])
    def test_decay_starts_from_the_tuned_alpha(self, epoch: int, factor: float) -> None:
        tuned = run(tuner(), 2.0)
        assert tuned.alpha_at(epoch, SIGMOID_COSINE, 100) / tuned.alpha == pytest.approx(factor, abs=5e-7)

    def test_alpha_of_the_next_epoch_while_tuning(self) -> None:
        tuned = tuner()
        assert tuned.alpha_at(0, SIGMOID_COSINE, 100) == 0.5
        tuned.observe(0, 9.0)
        assert tuned.alpha_at(1, SIGMOID_COSINE, 100) == pytest.approx(0.525)

    def test_decay_without_tuning_is_refused(self) -> None:
        with pytest.raises(RuntimeError, match="first 9 epochs, and 0 were observed"):
            tuner().alpha_at(9, SIGMOID_COSINE, 100)
        with pytest.raises(ValueError, match="first 9 epochs and the run has 9"):
            tuner().alpha_at(0, SIGMOID_COSINE, 9)

    def test_resume(self) -> None:
        whole = run(tuner(), 1.3)
        half = tuner()
        for epoch in range(4):
            half.observe(epoch, 1.3 * REFERENCE[epoch])
        resumed = tuner()
        resumed.load_state_dict(json.loads(json.dumps(half.state_dict())))
        for epoch in range(4, 9):
            resumed.observe(epoch, 1.3 * REFERENCE[epoch])
        assert resumed.state_dict() == whole.state_dict()
        assert resumed.history == whole.history

    def test_a_state_of_another_tuning_is_refused(self) -> None:
        state = tuner().state_dict()
        with pytest.raises(ValueError, match=r"up was 0\.05, is 0\.1"):
            tuner(up=0.1).load_state_dict(state)
        with pytest.raises(ValueError, match="reference was "):
            tuner(reference=[1.0] * 9).load_state_dict(state)


class TestTargetController:
    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("target", 0.0),
            ("target", 1.0),
            ("target", math.nan),
            ("ramp", 0.0),
            ("ramp", 1.01),
            ("total_steps", 0),
            ("every", 0),
            ("max_decay", 0.0),
            ("max_decay", math.inf),
        ],
    )
    def test_bad_values_are_named(self, field: str, value: Any) -> None:
        with pytest.raises(ValueError, match=f"{field} is .*allowed: "):
            TargetController(**{"target": 0.9, "ramp": 0.7, "total_steps": 800, field: value})

    @pytest.mark.parametrize(("total", "every"), [(1, 1), (60, 1), (800, 10), (8000, 100), (500_500, 100)])
    def test_default_pace(self, total: int, every: int) -> None:
        assert TargetController(0.9, 0.7, total).every == every

    def test_due(self) -> None:
        controller = TargetController(0.9, 0.7, 25, every=10)
        assert not any(controller.due(step) for step in range(26))
        controller.start(0.3)
        assert [step for step in range(26) if controller.due(step)] == [10, 20, 25]

    def test_wanted_by_hand(self) -> None:
        controller = TargetController(0.9, 0.5, 800)
        with pytest.raises(RuntimeError, match=r"call start\(sparsity\)"):
            controller.sparsity_at(0)
        controller.start(0.3)
        assert controller.sparsity_at(0) == pytest.approx(0.3)
        assert controller.sparsity_at(200) == pytest.approx(0.825)  # half way: .9 - .6/8
        assert controller.sparsity_at(400) == 0.9
        assert controller.sparsity_at(800) == 0.9

    def test_a_start_above_the_target_wants_the_target_at_once(self) -> None:
        controller = TargetController(0.7, 0.5, 800)
        controller.start(0.8)
        assert controller.sparsity_at(1) == 0.7
        with pytest.raises(ValueError, match=r"sparsity is 1\.2"):
            controller.start(1.2)

    @given(
        start=st.floats(0.0, 1.0),
        target=st.floats(0.01, 0.99),
        ramp=st.floats(0.01, 1.0),
        total=st.integers(1, 2000),
        steps=st.tuples(st.integers(0, 2000), st.integers(0, 2000)),
    )
    def test_ramp_never_falls_and_ends_at_the_target(
        self, start: float, target: float, ramp: float, total: int, steps: tuple[int, int]
    ) -> None:
        controller = TargetController(target, ramp, total)
        controller.start(start)
        early, late = sorted(steps)
        assert controller.sparsity_at(early) <= controller.sparsity_at(late) <= target
        assert controller.sparsity_at(math.ceil(ramp * total)) == pytest.approx(target)

    def test_limit_of_the_experiments(self) -> None:
        controller = TargetController(0.9, 0.7, 800)  # K = 10: 24 * 10 / 800 = .3 nats
        assert controller.limit(0.9) == 0.9
        assert controller.limit(0.1) == pytest.approx(math.exp(-0.3))
        assert controller.limit(-4.0) == pytest.approx(math.exp(-0.3))
        assert controller.limit(math.inf) == pytest.approx(math.exp(0.3))
        assert TargetController(0.9, 0.7, 800, max_decay=8).limit(0.1) == pytest.approx(math.exp(-0.1))
        with pytest.raises(ValueError, match="factor is NaN"):
            controller.limit(math.nan)

    @given(
        total=st.integers(1, 5000),
        every=st.one_of(st.none(), st.integers(1, 5000)),
        factor=st.floats(allow_nan=False),
    )
    def test_a_whole_run_never_moves_more_than_max_decay(self, total: int, every: int | None, factor: float) -> None:
        controller = TargetController(0.9, 0.7, total, every=every)
        limited = controller.limit(factor)
        assert limited > 0.0
        assert abs(math.log(limited)) * (total // controller.every) <= 24.0 * (1 + 1e-9)
        assert controller.limit(limited) == limited

    def test_resume(self) -> None:
        controller = TargetController(0.9, 0.7, 800)
        controller.start(0.3)
        controller.record(10, 0.33, 0.31, 0.8)
        other = TargetController(0.9, 0.7, 800)
        other.load_state_dict(json.loads(json.dumps(controller.state_dict())))
        assert other.sparsity_at(77) == controller.sparsity_at(77)
        assert other.history == controller.history == [(10, 0.33, 0.31, 0.8)]

    def test_resume_before_the_start(self) -> None:
        other = TargetController(0.9, 0.7, 800)
        other.start(0.5)
        other.load_state_dict(TargetController(0.9, 0.7, 800).state_dict())
        assert not other.due(10)

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"target": 0.8}, r"target was 0\.9, is 0\.8"),
            ({"total_steps": 801}, "total_steps was 800, is 801"),
            ({"ramp": 0.1}, r"ramp was 0\.7, is 0\.1"),
        ],
    )
    def test_a_state_of_another_controller_is_refused(self, fields: dict[str, Any], message: str) -> None:
        state = TargetController(0.9, 0.7, 800).state_dict()
        with pytest.raises(ValueError, match=message):
            TargetController(**{"target": 0.9, "ramp": 0.7, "total_steps": 800, **fields}).load_state_dict(state)


class TestThresholdDecay:
    def test_by_hand(self) -> None:
        assert threshold_decay(3.0, [0.1] * 600, momentum=0.9) == pytest.approx(0.005)

    def test_the_papers_run_backwards(self) -> None:
        # sum of the epochs' lr 13.056 with 5005 steps each: lambda 2^-15 is 15.95 nats.
        assert threshold_decay(15.95, [13.056] * 5005, momentum=0.875) == pytest.approx(2**-15, rel=1e-3)

    @given(total=st.floats(0.1, 30), lrs=st.lists(st.floats(0.0, 1.0), min_size=1), momentum=st.floats(0.0, 0.99))
    def test_total_comes_back(self, total: float, lrs: list[float], momentum: float) -> None:
        lrs = [*lrs, 0.1]
        decay = threshold_decay(total, iter(lrs), momentum)
        assert decay / (1.0 - momentum) * sum(lrs) == pytest.approx(total)

    def test_bad_input(self) -> None:
        with pytest.raises(ValueError, match="total is -1"):
            threshold_decay(-1, [0.1])
        with pytest.raises(ValueError, match="momentum is 1"):
            threshold_decay(1, [0.1], momentum=1)
        with pytest.raises(ValueError, match="learning rate of step 1 is nan"):
            threshold_decay(1, [0.1, math.nan])
        with pytest.raises(ValueError, match="the 2 learning rates sum to 0"):
            threshold_decay(1, [0.0, 0.0])
        with pytest.raises(ValueError, match="the 0 learning rates sum to 0"):
            threshold_decay(1, [])
