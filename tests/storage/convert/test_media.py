from __future__ import annotations

from typing import Any

import pytest

from parlatory.storage.convert.media import Medium, data_url, medium, placeholder
from parlatory.storage.messages import File, Image

PNG, JPEG, GIF, WEBP, PDF = "iVBORw0KGgo=", "/9j/4AAQ", "R0lGODlh", "UklGRgAAAABXRUJQ", "JVBERi0xLjQ="
URL = "https://x.test/a.png?b=c"


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"data": PNG}, Medium("image", "image/png", data=PNG)),
        ({"data": JPEG, "media_type": "image/png"}, Medium("image", "image/jpeg", data=JPEG)),
        ({"data": GIF, "media_type": "image"}, Medium("image", "image/gif", data=GIF)),
        ({"data": WEBP}, Medium("image", "image/webp", data=WEBP)),
        ({"data": PDF, "media_type": "image/png"}, Medium("file", "application/pdf", data=PDF)),
        ({"data": "QQ==", "media_type": "IMAGE/JPG; q=1"}, Medium("image", "image/jpeg", data="QQ==")),
        ({"data": "QQ=="}, Medium("image", "", data="QQ==")),
        ({"url": URL}, Medium("image", "image/png", url=URL)),
        ({"url": "https://x.test"}, Medium("image", "", url="https://x.test")),
        ({"url": "https://x.test/a.pdf"}, Medium("file", "application/pdf", url="https://x.test/a.pdf")),
        ({"url": "https://x.test/a.pdf", "media_type": "image/*"}, Medium("image", "", url="https://x.test/a.pdf")),
        ({"url": URL, "media_type": "image/*"}, Medium("image", "image/png", url=URL)),
        ({"data": PDF, "media_type": "image/*"}, Medium("file", "application/pdf", data=PDF)),
        ({"url": f"data:image/png;base64,{PNG}"}, Medium("image", "image/png", data=PNG)),
        ({"url": f"DATA:;a=b;base64,{PNG}"}, Medium("image", "image/png", data=PNG)),
        ({"url": "data:text/plain,a%20b"}, Medium("file", "text/plain", data="YSBi")),
        ({"ref": {"openai": "f"}, "media_type": "image/png"}, Medium("image", "image/png", id="f")),
        ({"url": "data:image/png;base64,@"}, None),
        ({"url": "data:image/png,"}, None),
        ({"url": "ftp://x"}, None),
        ({"url": "https://[x"}, None),
        ({"data": ""}, None),
        ({"ref": {"anthropic": "f"}}, None),
        ({}, None),
    ],
    ids=str,
)
def test_images(fields: dict[str, Any], found: Medium | None) -> None:
    assert medium(Image(**fields), "openai") == found


@pytest.mark.parametrize(
    ("fields", "kind", "type"),
    [
        ({"data": PNG, "media_type": "application/octet-stream"}, "image", "image/png"),
        ({"data": PNG, "media_type": "text/plain"}, "file", "text/plain"),
        ({"data": "QQ==", "media_type": "application/x y"}, "file", ""),
        ({"data": "QQ==", "media_type": "audio/wav"}, "file", "audio/wav"),
        ({"url": "https://x.test/a", "media_type": "image/png"}, "image", "image/png"),
        ({"url": "https://x.test/a.pdf", "media_type": "image/*"}, "image", ""),
        ({"data": "QQ==", "media_type": "image/*"}, "image", ""),
    ],
    ids=str,
)
def test_files(fields: dict[str, Any], kind: str, type: str) -> None:
    found = medium(File(**fields), "openai")
    assert found is not None
    assert (found.kind, found.type) == (kind, type)


def test_data_urls() -> None:
    assert data_url(Medium("image", "image/png", data=PNG)) == f"data:image/png;base64,{PNG}"
    assert data_url(Medium("file", "", data="QQ==")) == "data:application/octet-stream;base64,QQ=="


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (Image(url=URL, filename="a.png"), URL),
        (Image(url="data:,a", filename="a.png"), "[a.png]"),
        (Image(data=PNG, media_type="image/png"), "[image/png]"),
        (Image(data=PNG), "[image]"),
    ],
)
def test_placeholders(part: Image | File, text: str) -> None:
    assert placeholder(part) == text
