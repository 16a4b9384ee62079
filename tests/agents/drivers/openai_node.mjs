// The openai package, streaming chat: three turns with a tool, with no time limits but its own. Prints the final text.
import OpenAI from "openai";

const client = new OpenAI();
const look = {
  type: "function",
  function: {
    name: "look",
    description: "what a file says",
    parameters: { type: "object", properties: { path: { type: "string" }, line: { type: "number" } } },
    parse: JSON.parse,
    function: ({ path }) => `${path}: kiwi`,
  },
};
const runner = client.chat.completions.runTools({
  model: "shop",
  stream: true,
  messages: [
    { role: "system", content: "You are a clerk." },
    { role: "user", content: process.env.SANDGATE_PROMPT },
  ],
  tools: [look],
});
console.log(await runner.finalContent());
