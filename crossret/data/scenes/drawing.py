"""A scene as a picture: anti-aliased objects with texture, shading and a soft shadow over a textured background."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from crossret.data.scenes.backgrounds import draw_background
from crossret.data.scenes.shapes import signed_distance
from crossret.data.scenes.world import IMAGE_SIZE, Scene, SceneObject

Floats = NDArray[np.float32]

PAINTS = {
    "red": (206, 44, 40),
    "orange": (240, 134, 30),
    "yellow": (246, 214, 52),
    "green": (46, 150, 66),
    "blue": (40, 92, 208),
    "purple": (122, 54, 164),
    "pink": (244, 138, 182),
    "black": (38, 38, 44),
    "white": (244, 242, 236),
}
HUE_JITTER = 7.0  # up and down, of 255, in each channel
SHADOW_SHIFT, SHADOW_SOFTNESS, SHADOW_STRENGTH = 3, 4.0, 0.38  # pixels, pixels, share of the light taken
RIM = 1.6  # pixels of darker outline, so that a white object stands out from snow


@dataclass(frozen=True)
class Drawing:
    """A picture and where its objects are.

    Attributes:
        pixels: (224, 224, 3) uint8 RGB.
        object_boxes: (objects, 4) float32, x0, y0, x1, y1 around each object's pixels, its shadow left out.
    """

    pixels: NDArray[np.uint8]
    object_boxes: Floats


def draw_scene(scene: Scene) -> Drawing:
    """Render a scene; the same scene gives the same bytes.

    On another kind of processor NumPy may round a sine differently in its last bit, and so, rarely, a pixel.
    """
    rng = np.random.default_rng((*scene.drawing_seed, 1))
    canvas = draw_background(scene.background, rng)
    boxes = [_draw_object(canvas, thing, rng) for thing in scene.objects]
    return Drawing(np.clip(canvas + 0.5, 0, 255).astype(np.uint8), np.array(boxes, dtype=np.float32))


def _draw_object(canvas: Floats, thing: SceneObject, rng: np.random.Generator) -> tuple[int, int, int, int]:
    """Paint one object into the canvas and return the box around its pixels."""
    # The number of random draws is the same for every object: a changed attribute leaves the others' looks alone.
    hue = rng.uniform(-HUE_JITTER, HUE_JITTER, size=3).astype(np.float32)
    phase, stripe_angle = rng.uniform(0, 1, size=2), rng.uniform(0, np.pi)
    reach = thing.radius + SHADOW_SHIFT + SHADOW_SOFTNESS + 1
    left, top = (max(0, int(centre - reach)) for centre in (thing.x, thing.y))
    right, bottom = (min(IMAGE_SIZE, int(centre + reach) + 2) for centre in (thing.x, thing.y))
    patch = canvas[top:bottom, left:right]
    # Pixel centres relative to the object's, turned with it, in units of its radius.
    dx = (np.arange(left, right, dtype=np.float32) + np.float32(0.5 - thing.x))[None, :] / np.float32(thing.radius)
    dy = (np.arange(top, bottom, dtype=np.float32) + np.float32(0.5 - thing.y))[:, None] / np.float32(thing.radius)
    cosine, sine = np.float32(np.cos(thing.tilt)), np.float32(np.sin(thing.tilt))
    u, v = cosine * dx + sine * dy, cosine * dy - sine * dx
    distance = signed_distance(thing.shape, u, v) * np.float32(thing.radius)

    shade = np.clip((SHADOW_SOFTNESS - distance) / (2 * SHADOW_SOFTNESS), 0, 1)
    shade = shade * shade * (3 - 2 * shade) * SHADOW_STRENGTH
    shift = SHADOW_SHIFT
    patch[shift:, shift:] *= 1 - shade[:-shift, :-shift, None]

    paint = np.clip(np.array(PAINTS[thing.colour], dtype=np.float32) + hue, 0, 255)
    mix = _texture(thing.texture, u * np.float32(thing.radius), v * np.float32(thing.radius), phase, stripe_angle)
    colour = paint + mix[..., None] * (_second_tone(paint) - paint)
    light = 1 - 0.09 * (dx + dy) - 0.38 * np.clip((distance + RIM + 0.5) / 1.5, 0, 1)
    cover = np.clip(0.5 - distance, 0, 1)[..., None]
    patch += cover * (colour * light[..., None] - patch)

    ys, xs = np.nonzero(cover[..., 0] >= 0.5)
    return left + int(xs.min()), top + int(ys.min()), left + int(xs.max()) + 1, top + int(ys.max()) + 1


def _second_tone(paint: Floats) -> Floats:
    """The texture's other tone: lighter than a dark paint, darker than a light one, of the same hue."""
    luminance = float(paint @ np.array([0.3, 0.59, 0.11]))
    return paint + 0.55 * (255 - paint) if luminance < 140 else 0.55 * paint


def _texture(texture: str, u: Floats, v: Floats, phase: NDArray[np.float64], angle: float) -> Floats:
    """How much of the second tone each pixel takes, 0 to 1; ``u`` and ``v`` are pixels along the object's axes."""
    if texture == "plain":
        return np.zeros(np.broadcast_shapes(u.shape, v.shape), dtype=np.float32)
    if texture == "striped":
        across = np.float32(np.cos(angle)) * u + np.float32(np.sin(angle)) * v
        return _soft_step(_wave(across, 9.0, phase[0]), 9.0)
    if texture == "dotted":
        return _soft_step((_wave(u, 9.0, phase[0]) + _wave(v, 9.0, phase[1]) - 0.75) / 1.4, 9.0)
    return _soft_step(_wave(u, 14.0, phase[0]) * _wave(v, 14.0, phase[1]), 14.0)  # checkered


def _wave(along: Floats, period: float, phase: float) -> Floats:
    return np.sin(along * np.float32(2 * np.pi / period) + np.float32(2 * np.pi * phase))


def _soft_step(wave: Floats, period: float) -> Floats:
    """0 where the wave is negative and 1 where it is positive, over about a pixel: an anti-aliased edge."""
    return np.clip(0.5 + wave * np.float32(period / (2 * np.pi)), 0, 1)
