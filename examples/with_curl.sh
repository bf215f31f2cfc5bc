#!/bin/bash
# A search with curl alone: upload, submit, follow the events, download the adapter.
#   bash examples/with_curl.sh                  (with `motet up` running; MOTET_API_URL and MOTET_API_KEY name another service)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
stack="${MOTET_STATE_DIR:-$HOME/.local/state/motet}/credentials.json"
field() { python3 -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1]])' "$1"; }
api=${MOTET_API_URL:-$(field api_url < "$stack")}
call=(curl -sS --fail-with-body -H "Authorization: Bearer ${MOTET_API_KEY:-$(field demo_key < "$stack")}")

file=$("${call[@]}" -F file=@"$here/restaurants/train.jsonl" "$api/v1/files" | field id)
task=$("${call[@]}" -H 'Content-Type: application/json' -H "Idempotency-Key: $RANDOM$RANDOM" "$api/v1/tasks" -d '{
  "name": "with-curl",
  "base_model": "example-7m",
  "dataset": {"file_id": "'"$file"'", "validation_fraction": 0.05},
  "search_space": {"learning_rate": [1e-3, 5e-3], "rank": 8},
  "training": {"epochs": 1, "max_steps": 6, "max_seq_len": 160}
}' | field id)
echo "submitted $task"
"${call[@]}" -N "$api/v1/tasks/$task/events" | sed -n 's/^data: //p' # ends with the task; Last-Event-ID goes on after a break
"${call[@]}" -L "$api/v1/tasks/$task/adapter" -o "$task.tar.gz"
echo "saved $task.tar.gz"
