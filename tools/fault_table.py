"""The faults that tools/faults.py plants, and the tests that catch each.

A fault is found by a piece of a line that its file has once. After moving or rewriting such a line,
move or rewrite the fault: tests/test_faults.py fails until then. A fault changes what the program
does in a way that matters; one that changes nothing teaches nothing.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """One fault: what of a line is replaced by what, and the tests that should notice."""

    name: str
    file: str  # below src/snip
    line: str  # occurs once in the file
    instead: str
    tests: str  # below tests/, separated by spaces: file or file::test


FAULTS = (
    # Selection.
    Fault(
        "last-of-equals-kept",
        "selection/topk.py",
        "equal = (values == threshold).nonzero().flatten()[: ties - taken]",
        "equal = (values == threshold).nonzero().flatten()[taken - ties :]",
        "test_topk.py",
    ),
    Fault(
        "digit-counted-twice",
        "selection/topk.py",
        "left -= _cost(at_least, place - 1) if place else 0",
        "left -= _cost(at_least, place) if place else 0",
        "test_topk.py",
    ),
    Fault(
        "within-ignored",
        "selection/topk.py",
        "values = values.masked_fill(~allowed[piece].to(values.device), torch.nan)",
        "pass",
        "test_selection_floors.py",
    ),
    Fault(
        "kappa-truncated",
        "selection/budgets.py",
        "return round(total * (1 - sparsity))",
        "return int(total * (1 - sparsity))",
        "test_selection.py",
    ),
    Fault(
        "smallest-remainder",
        "selection/budgets.py",
        "key=lambda name: shares[name] - wanted[name]",
        "key=lambda name: wanted[name] - shares[name]",
        "test_selection.py",
    ),
    Fault(
        "floor-of-one-is-a-fraction",
        "selection/select.py",
        "int(floor) if floor >= 1 else round(size * floor)",
        "int(floor) if floor > 1 else round(size * floor)",
        "test_selection_floors.py",
    ),
    Fault(
        "costs-in-binary",
        "selection/select.py",
        "Fraction(str(float(costs[name])))",
        "Fraction(float(costs[name]))",
        "test_selection_costs.py",
    ),
    Fault(
        "pattern-regrows",
        "selection/granularity.py",
        "mask &= self._winners(name, scores[name], mask)",
        "mask.copy_(self._winners(name, scores[name], mask))",
        "test_granularity_patterns.py",
    ),
    Fault(
        "blocks-by-sum",
        "selection/granularity.py",
        "means[name] = _per_cost(sums / sizes[name].clamp(min=1), costs[name])",
        "means[name] = _per_cost(sums, costs[name])",
        "test_granularity_blocks.py::test_the_best_whole_blocks_stay_as_many_as_kappa_allows",
    ),
    Fault(
        "survivor-that-is-gone",
        "selection/select.py",
        "allowed = score if inside is None else score.where(inside.to(score.device), -torch.inf)",
        "allowed = score",
        "test_normed_pruning.py",
    ),
    Fault(
        "cure-that-reaches-nothing",
        "selection/repair.py",
        "(reached > self.most and not self.before)",
        "(reached >= self.most and not self.before)",
        "test_repair.py",
    ),
    # Scores.
    Fault(
        "batches-count-alike",
        "scoring/gradients.py",
        'return size if scoring.loss_reduction == "mean" else 1',
        "return 1",
        "test_sensitivity.py::test_abs_of_sum_does_not_depend_on_how_the_data_is_cut",
    ),
    Fault(
        "signed-sensitivity",
        "scoring/gradients.py",
        "value = self.values[name].abs_() if self.sensitivity else self.values[name]",
        "value = self.values[name]",
        "test_sensitivity.py",
    ),
    Fault(
        "gradient-of-others-overwritten",
        "scoring/gradients.py",
        "return plain and is_sole_owner(cast(list[torch.Tensor], gradients))",
        "return plain",
        "test_memory.py",
    ),
    Fault(
        "small-scale-lost",
        "scoring/waking.py",
        "part.facts.tensor.fill_(part.value)",
        "part.facts.tensor.zero_()",
        "test_waking.py",
    ),
    # Methods.
    Fault(
        "flow-cancels",
        "methods/synflow.py",
        "else tensor.abs_()",
        "else tensor",
        "test_synflow.py",
    ),
    Fault(
        "removed-rank-first",
        "methods/rounds.py",
        "local(before[name]) - shift)",
        "local(before[name]) + shift)",
        "test_rounds.py",
    ),
    Fault(
        "same-draw-again",
        "methods/baselines.py",
        "manual_seed(int(torch.randint(1 << 62, ())))",
        "manual_seed(torch.initial_seed())",
        "test_random.py",
    ),
    Fault(
        "squares-before-sum",
        "methods/obd.py",
        "d.sum(3).square().sum(0).flatten()",
        "d.square().sum(3).sum(0).flatten()",
        "test_obd_lobs.py",
    ),
    Fault(
        "inverse-of-the-diagonal",
        "methods/lobs.py",
        "torch.linalg.inv(hessian).diagonal(dim1=-2, dim2=-1)",
        "1 / hessian.diagonal(dim1=-2, dim2=-1)",
        "test_obd_lobs.py",
    ),
    Fault(
        "nothing-is-spliced",
        "methods/dns.py",
        "return (kept & (size > CUT * limit)) | (size > SPLICE * limit)",
        "return kept & (size > CUT * limit)",
        "test_lwc_dns_lc.py",
    ),
    # Masks.
    Fault(
        "mask-not-copied",
        "masks/holding.py",
        "by_module.setdefault(owner, {})[key] = mask.clone()",
        "by_module.setdefault(owner, {})[key] = mask",
        "test_holding.py",
    ),
    Fault(
        "frozen-thaws",
        "masks/holding.py",
        "parameter.requires_grad_(not frozen)",
        "parameter.requires_grad_(True)",
        "test_holding.py",
    ),
    Fault(
        "nan-stays",
        "masks/holding.py",
        "tensor.view(bits).mul_(self.mask)",
        "tensor.mul_(self.mask)",
        "test_holding.py",
    ),
    Fault(
        "mask-checksum-unchecked",
        "masks/masks.py",
        'if header.pop("checksum") != checksum(loaded, header):',
        'if not header.pop("checksum"):',
        "test_masks.py",
    ),
    Fault(
        "digest-without-shape",
        "masks/masks.py",
        'digest.update(f"{name}{tuple(mask.shape)}".encode() + bits.tobytes())',
        "digest.update(name.encode() + bits.tobytes())",
        "test_masks.py",
    ),
    # Several processes.
    Fault(
        "rows-of-a-rank-rounded-down",
        "distributed/shards.py",
        "each = -(-like.shape[0] // ranks.size)  # rounded up",
        "each = like.shape[0] // ranks.size",
        "test_distributed_sharded.py::test_it_is_pruned_and_trained_as_in_one_process",
    ),
    # What all share.
    Fault(
        "half-written-file-stays",
        "common/files.py",
        "            temporary.unlink(missing_ok=True)",
        "            pass",
        "test_files.py",
    ),
    Fault(
        "no-final-newline",
        "common/files.py",
        'allow_nan=False) + "\\n"',
        "allow_nan=False)",
        "test_files.py",
    ),
    # The user's network.
    Fault(
        "python-random-not-restored",
        "network/untouched.py",
        "    random.setstate(pythons)",
        "    pass",
        "test_sensitivity.py::test_scoring_leaves_no_trace",
    ),
    Fault(
        "tied-by-first-name",
        "network/parameters.py",
        "veto = next((reason for reason in reasons.values() if reason is not None), None)",
        "veto = next(iter(reasons.values()))",
        "test_parameters.py",
    ),
    Fault(
        "norm-along-first-dimension",
        "network/norms.py",
        "return tensor.transpose(0, self.norm.dim).flatten(1)",
        "return tensor.flatten(1)",
        "test_normed_pruning.py",
    ),
    Fault(
        "overwritten-before-it-is-read",
        "network/graph.py",
        "any(self.place[user] > self.place[n] for user in node.users)",
        "any(self.place[user] < self.place[n] for user in node.users)",
        "test_tracing.py",
    ),
    Fault(
        "sigmoid-of-zero-is-zero",
        "network/operations.py",
        '"sigmoid hardsigmoid logsigmoid softplus cos erfc", layouts=True)',
        '"sigmoid hardsigmoid logsigmoid softplus cos erfc", zero=True, layouts=True)',
        "test_tracing.py",
    ),
    Fault(
        "reset-gate-closed",
        "network/path_sequences.py",
        "n = n_x + (1 + r_x + r_h) * n_h",
        "n = n_x + (r_x + r_h) * n_h",
        "test_connectivity_sequences.py",
    ),
    Fault(
        "unit-twice-in-a-cut",
        "network/cuts.py",
        "any(a >= b for a, b in pairwise(side))",
        "any(a > b for a, b in pairwise(side))",
        "test_hostile_sizes.py::test_the_units_of_a_cut_rise",
    ),
    Fault(
        "united-without-their-roots",
        "network/units.py",
        "self._parent[self._root(b)] = self._root(a)",
        "self._parent[b] = self._root(a)",
        "test_granularity_units.py::test_units_of_two_sums_with_a_term_in_common_go_together",
    ),
    # Reports and export.
    Fault(
        "all-reached-warns",
        "reports/report.py",
        "if paths.connected and paths.dead_outputs:",
        "if paths.connected:",
        "test_report_paths.py",
    ),
    Fault(
        "minus-zero-lost",
        "export/compact.py",
        "return flat.view(torch.uint8).reshape(len(flat), flat.element_size()).bool().any(1)",
        "return flat != 0",
        "test_compact.py::test_any_tensor_round_trips",
    ),
    Fault(
        "constant-of-one-position",
        "export/shrink.py",
        "matrix = reader.weight[:, columns].cpu().double().sum(2)",
        "matrix = reader.weight[:, columns].cpu().double()[:, :, 0]",
        "test_shrink.py",
    ),
    # Networks, data.
    Fault(
        "idx-of-any-type",
        "data/idx.py",
        "if magic != 0x0800 + dimensions:",
        "if magic & 0xFF != dimensions:",
        "test_data_idx.py",
    ),
    Fault(
        "never-shifted-to-the-end",
        "data/augment.py",
        "rng.integers(0, 2 * margin + 1, size=(2, count))",
        "rng.integers(0, 2 * margin, size=(2, count))",
        "test_data_batches.py",
    ),
    Fault(
        "download-unverified",
        "data/download.py",
        "if digest.hexdigest() != remote.sha256:",
        "if not digest.hexdigest():",
        "test_data_download.py::test_failed_download_leaves_nothing",
    ),
    # Training and runs.
    Fault(
        "rate-drops-a-step-late",
        "training/schedule.py",
        "return bisect_right(config.lr_drops, iteration)",
        "return bisect_right(config.lr_drops, iteration - 1)",
        "test_training_config.py",
    ),
    Fault(
        "checkpoint-forgets-a-counter",
        "training/state.py",
        'COUNTERS = ("iteration", "seconds", "cpu_seconds", "step_seconds")',
        'COUNTERS = ("iteration", "seconds", "cpu_seconds")',
        "test_training_resume.py::test_a_finished_training_is_read_again_with_its_times",
    ),
    Fault(
        "generator-not-restored",
        "training/checkpoint.py",
        'set_random_state(model, content["rng"])',
        "pass",
        "test_training_resume.py::test_stopped_run_resumes_to_the_same_bits",
    ),
    Fault(
        "dense-runs-by-method",
        "runs/naming.py",
        "if v != defaults[k] and k not in skipped}",
        "if v != defaults[k]}",
        "test_runs_config.py",
    ),
    Fault(
        "redraw-trains-the-scored-draw",
        "runs/seeds.py",
        'scored if config.protocol == "train-scored" else derived(scored, "redraw")',
        "scored",
        "test_runs_config.py",
    ),
    # Commands, experiments, page.
    Fault(
        "exit-code-lost",
        "cli/__init__.py",
        "return code if isinstance(code, int) else 0",
        "return 0",
        "test_cli.py::test_a_run_that_is_interrupted_says_how_to_go_on",
    ),
    Fault(
        "useless-by-state-unseen",
        "cli/useless.py",
        "if found and beside in holding:",
        "if found and beside in given:",
        "test_useless.py",
    ),
    Fault(
        "as-far-does-not-count",
        "experiments/records/chance.py",
        "abs(total - middle) >= abs(lead)",
        "abs(total - middle) > abs(lead)",
        "test_chance.py",
    ),
    Fault(
        "page-connects",
        "page/render.py",
        "\"'self'\" if live else \"'none'\"",
        "\"'self'\"",
        "test_page_serving.py::test_the_command_writes_one_whole_page",
    ),
    Fault(
        "page-unescaped",
        "page/render.py",
        "autoescape=True",
        "autoescape=False",
        "test_page_serving.py::test_hostile_names_are_no_markup",
    ),
    # The engine.
    Fault(
        "row-below-not-padded",
        "engine/kernels/plan.py",
        "return _least(taps.row) < 0 or last >= taps.in_shape[1]",
        "return _least(taps.row) < 0 or last > taps.in_shape[1]",
        "test_kernels.py::test_convolution_equals_dense",
    ),
    Fault(
        "biased-variance-kept",
        "engine/layers/norm.py",
        "self._update_statistics(mean, variance * (count / max(count - 1, 1)))",
        "self._update_statistics(mean, variance)",
        "test_conv_networks.py",
    ),
    Fault(
        "step-undone",
        "engine/layers/packing.py",
        "not _same(written, before) and _same(values, before):",
        "not _same(written, before):",
        "test_accelerate_averages.py",
    ),
    Fault(
        "maximize-ignored",
        "engine/fused/update.py",
        'if group["dampening"] or group["maximize"] or group["differentiable"]:',
        'if group["dampening"] or group["differentiable"]:',
        "test_native_steps_left_to_torch.py::test_what_only_torch_knows_is_left_to_it",
    ),
    Fault(
        "nan-loses-in-a-pool",
        "engine/native/pool.hpp",
        "vi wins = (v > best) | (v != v);",
        "vi wins = v > best;",
        "test_kernels_layers.py::test_a_nan_wins_a_max_pool_as_in_torch",
    ),
    Fault(
        "loss-of-a-lane-beyond",
        "engine/native/loss.hpp",
        "factor[j] = b + j < valid ? scale / total[j] : 0.0f;",
        "factor[j] = b + j <= valid ? scale / total[j] : 0.0f;",
        "test_training_step.py::test_steps_equal_the_ordinary_loop",
    ),
    Fault(
        "last-row-of-a-border",
        "engine/native/conv_forward.hpp",
        "end = entry_from_row(p, first, stop, p.in_h - top);",
        "end = entry_from_row(p, first, stop, p.in_h - top - 1);",
        "test_conv_layers.py::test_layers_equal_torch",
    ),
)
