"""The Slack app, as Slack's own form takes it: paste it at api.slack.com, "Create an app", "From a manifest"."""

from __future__ import annotations

MANIFEST = """\
display_information:
  name: gpujob
  description: Lends idle GPUs of LLM services to research jobs, and hands them back in time.
  background_color: "#1f2a44"
features:
  app_home:
    home_tab_enabled: false
    messages_tab_enabled: true
    messages_tab_read_only_enabled: false
  bot_user:
    display_name: gpujob
    always_online: true
  slash_commands:
    - command: /gpujob
      description: Submit and follow jobs on idle GPUs
      usage_hint: submit | status job-41 | list | cancel job-41 | logs job-41 | pool | report | help
      should_escape: true
oauth_config:
  scopes:
    bot:
      - app_mentions:read
      - channels:history
      - channels:read
      - chat:write
      - chat:write.public
      - commands
      - files:read
      - files:write
      - groups:history
      - groups:read
      - im:history
      - im:write
      - usergroups:read
      - users:read
      - users:read.email
settings:
  event_subscriptions:
    bot_events:
      - app_mention
  interactivity:
    is_enabled: true
  org_deploy_enabled: false
  socket_mode_enabled: true
  token_rotation_enabled: false
"""
