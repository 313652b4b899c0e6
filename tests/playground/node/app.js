// A small Bolt app: a command that answers twice, a button, a form with an error, and a mention.
const { App, LogLevel } = require("@slack/bolt");

const [baseUrl, token, appToken] = process.argv.slice(2);
const plain = (text) => ({ type: "plain_text", text });
const form = {
  type: "modal", callback_id: "form", title: plain("New job"), submit: plain("Submit"),
  blocks: [{ type: "input", block_id: "name", label: plain("Name"), element: { type: "plain_text_input", action_id: "value" } }],
};
const buttons = [{ type: "actions", elements: [{ type: "button", action_id: "approve", value: "job-41", text: plain("Approve") }] }];

const app = new App({ token, appToken, socketMode: true, logLevel: LogLevel.ERROR, clientOptions: { slackApiUrl: baseUrl } });

app.command("/gpujob", async ({ command, ack, respond, client }) => {
  await ack(`taken: ${command.text}`);
  if (command.text === "submit") await client.views.open({ trigger_id: command.trigger_id, view: form });
  else await respond({ text: `done: ${command.text}`, response_type: "in_channel", blocks: buttons });
});
app.action("approve", async ({ ack, action, respond }) => {
  await ack();
  await respond({ text: `approved: ${action.value}`, replace_original: true, blocks: [] });
});
app.view("form", async ({ ack, view, client }) => {
  const name = view.state.values.name.value.value;
  if (name === "Bad Name") return ack({ response_action: "errors", errors: { name: "Use a-z." } });
  await ack();
  await client.chat.postMessage({ channel: "C0GPU", text: `submitted: ${name}` });
});
app.event("app_mention", async ({ event, say }) => { await say({ text: "heard", thread_ts: event.ts }); });

process.on("SIGTERM", async () => { await app.stop(); process.exit(0); });
app.start().then(() => console.log("ready"));
