#!/usr/bin/env python3
"""Turns a data set into the JSON lines that weft reads: one object a row, every column kept.

  to_jsonl.py train.parquet > train.jsonl           Parquet (needs pyarrow), CSV or TSV (nothing)
  to_jsonl.py folder/ --split train > train.jsonl   a folder written by datasets.save_to_disk, or a data set's id (needs datasets)
  to_jsonl.py train.parquet --rename question=prompt --rename answer=solution --columns prompt,solution > train.jsonl

A column named with dots (reward_model.ground_truth) stays one name; nested columns stay nested objects.
"""
import argparse
import base64
import csv
import datetime
import decimal
import json
import math
import os
import sys


def needs(module, why):
    try:
        return __import__(module)
    except ImportError:
        sys.exit(f"to_jsonl.py: {why} needs the Python package {module}: pip install {module}")


def parquet_rows(path):
    needs("pyarrow", f"{path} (Parquet)")
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(path) as file:
        for batch in file.iter_batches():
            yield from batch.to_pylist()


def csv_rows(path):
    csv.field_size_limit(sys.maxsize)
    with open(path, newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file, delimiter="\t" if path.endswith(".tsv") else ",", strict=True)
        for row in reader:
            if None in row or None in row.values():
                sys.exit(f"to_jsonl.py: {path}: line {reader.line_num}: another number of fields than the header's {len(reader.fieldnames)}")
            yield row


def dataset_rows(name, config, split):
    datasets = needs("datasets", f"{name} (a data set)")
    data = datasets.load_from_disk(name) if os.path.isdir(name) else datasets.load_dataset(name, config)
    if isinstance(data, dict):
        if split not in data:
            sys.exit(f"to_jsonl.py: {name}: choose --split: {', '.join(data)}")
        data = data[split]
    yield from data


def plain(value):
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return value


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source")
    parser.add_argument("--config", help="configuration of a data set")
    parser.add_argument("--split", default="train", help="split of a data set (default train)")
    parser.add_argument("--rename", action="append", default=[], metavar="OLD=NEW")
    parser.add_argument("--columns", help="only these, after renaming: a,b,c")
    args = parser.parse_args()
    renames = dict(pair.split("=", 1) for pair in args.rename)
    columns = args.columns.split(",") if args.columns else None
    if args.source.endswith(".parquet"):
        rows = parquet_rows(args.source)
    elif args.source.endswith((".csv", ".tsv")):
        rows = csv_rows(args.source)
    else:
        rows = dataset_rows(args.source, args.config, args.split)
    count = 0
    for row in rows:
        missing = [name for name in renames if name not in row]
        row = {renames.get(name, name): plain(value) for name, value in row.items()}
        missing += [name for name in columns or [] if name not in row]
        if missing:
            sys.exit(f"to_jsonl.py: row {count + 1} has no column {', '.join(missing)}; there are: {', '.join(row)}")
        print(json.dumps({name: row[name] for name in columns} if columns else row, ensure_ascii=False))
        count += 1
    print(f"{count} rows", file=sys.stderr)


if __name__ == "__main__":
    main()
