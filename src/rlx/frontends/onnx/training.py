"""Importer functions: steps of optimisers (domain ai.onnx.preview.training), and training forms of norms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rlx.frontends.onnx.table import OnnxNode, Operand, onnx_op
from rlx.ir.graph import Value
from rlx.ops import build

DOMAIN = "ai.onnx.preview.training"
Step = Callable[..., tuple[Value, ...]]


def _each(rate: Value, values: Sequence[Value], states: int, step: Step) -> list[Value]:
    """Inputs are all weights, then all gradients, then each of the states; results are weights, then states."""
    count = len(values) // (2 + states)
    groups = [values[i * count : (i + 1) * count] for i in range(2 + states)]
    updates = [step(rate, *parts) for parts in zip(*groups)]
    return [part for group in zip(*updates) for part in group]


@onnx_op("Adagrad", domain=DOMAIN)
def adagrad(node: OnnxNode, rate: Value, count: Value, *values: Value) -> list[Value]:
    decay, penalty = node.real("decay_factor", 0.0), node.real("norm_coefficient", 0.0)
    epsilon = node.real("epsilon", 0.0)
    slowed = rate / (count.cast(rate.dtype) * decay + 1.0)

    def step(rate: Value, x: Value, gradient: Value, squares: Value) -> tuple[Value, ...]:
        gradient = gradient + x * penalty
        squares = squares + gradient * gradient
        return x - rate * gradient / (build.sqrt(squares) + epsilon), squares

    return _each(slowed, values, 1, step)


@onnx_op("Adam", domain=DOMAIN)
def adam(node: OnnxNode, rate: Value, count: Value, *values: Value) -> list[Value]:
    """Kingma & Ba 2015; the correction of the bias is part of the rate, and left out of the first step."""
    alpha, beta = node.real("alpha", 0.9), node.real("beta", 0.999)
    before, after = node.real("norm_coefficient", 0.0), node.real("norm_coefficient_post", 0.0)
    epsilon = node.real("epsilon", 0.0)
    steps = count.cast(rate.dtype)
    one = node.graph.constant(1.0, rate.dtype)
    corrected = rate * build.sqrt(one - build.pow(one * beta, steps)) / (one - build.pow(one * alpha, steps))
    rate = build.select(count > 0, corrected, rate)

    def step(rate: Value, x: Value, gradient: Value, mean: Value, squares: Value) -> tuple[Value, ...]:
        gradient = gradient + x * before
        mean = mean * alpha + gradient * (1.0 - alpha)
        squares = squares * beta + gradient * gradient * (1.0 - beta)
        x = x - rate * mean / (build.sqrt(squares) + epsilon)
        return x * (1.0 - after), mean, squares

    return _each(rate, values, 2, step)


@onnx_op("Momentum", domain=DOMAIN)
def momentum(node: OnnxNode, rate: Value, count: Value, *values: Value) -> list[Value]:
    alpha, beta, penalty = node.real("alpha"), node.real("beta"), node.real("norm_coefficient")
    nesterov = node.text("mode") == "nesterov"
    later = build.select(count > 0, beta, node.graph.constant(1.0, rate.dtype))

    def step(rate: Value, x: Value, gradient: Value, moving: Value) -> tuple[Value, ...]:
        gradient = gradient + x * penalty
        moving = moving * alpha + gradient * later
        return x - rate * (gradient + moving * alpha if nesterov else moving), moving

    return _each(rate, values, 1, step)


@onnx_op("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
def loss(node: OnnxNode, scores: Value, labels: Value, weights: Value | None) -> Any:
    """The standard's own definition, for labels that are classes or the one to ignore."""
    node.text("reduction", "mean")
    ignored = node.integer("ignore_index", None)
    classes = scores.shape[1]
    checked = labels if ignored is None else build.select(build.eq(labels, ignored), 0, labels)
    node.inputs[1] = Operand.of(node.require(labels, checked, 0, classes, "labels"))
    return NotImplemented
