"""The loop level: nests and contractions that name no target, their schedule, memory plan and renderers."""
