"""Sources as other programs write them: tars, tables of the Hugging Face hub, folders that `datasets` has saved."""

import io
import json
import tarfile

import pyarrow as pa

FEATURES = {
    "image": {"_type": "Image"},
    "label": {"names": ["tench", "goldfish", "3"], "_type": "ClassLabel"},
    "caption": {"dtype": "string", "_type": "Value"},
}


def encode_tar(members, tar_format=tarfile.PAX_FORMAT):
    """Return a tar of (name, bytes or type) pairs."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tar_format) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            if isinstance(data, bytes):
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
            else:
                info.type, info.linkname = data.encode(), "x"
                tar.addfile(info)
    return buffer.getvalue()


def hub_table(images, features=FEATURES, **columns):
    """Return a table as `datasets` writes it: images are a struct of bytes and path."""
    struct = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table({"image": pa.array(images, struct), **columns})
    return table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})


def embed(jpegs, first=0):
    return [{"bytes": data, "path": f"n{number:04d}.JPEG"} for number, data in enumerate(jpegs, first)]


def save_to_disk(folder, tables):
    """Write the files that `Dataset.save_to_disk` writes."""
    folder.mkdir(parents=True)
    names = [f"data-{part:05d}-of-{len(tables):05d}.arrow" for part in range(len(tables))]
    for name, table in zip(names, tables, strict=True):
        with pa.OSFile(str(folder / name), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=4)
    state = {"_data_files": [{"filename": name} for name in names], "_split": None}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "cache-1234.arrow").write_bytes(b"of a map, and none of the dataset's")
