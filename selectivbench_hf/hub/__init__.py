"""The Hub: published data, submissions, results and the leaderboard. Nothing here is imported before a command or a function needs it."""
