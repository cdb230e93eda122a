#!/bin/sh
# RUSTC_WRAPPER: compiles tokenmill and the fuzz targets with libFuzzer's coverage counters, all else as it is, so that the
# dependencies built for the root's release serve here too. Works with a stable compiler.
rustc="$1"
shift
name=
previous=
for argument in "$@"; do
  if [ "$previous" = "--crate-name" ]; then name="$argument"; fi
  previous="$argument"
done
case "$name" in
  tokenmill|tokenmill_fuzz|checkpoint|jsonl|text|compression|config)
    exec "$rustc" "$@" --cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
      -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
      -Cllvm-args=-sanitizer-coverage-trace-compares ;;
  *) exec "$rustc" "$@" ;;
esac
