// OpenAI's Agents SDK for JavaScript: node agents_sdk.mjs chat|responses. Three steps with a tool; prints the final text.
import { Agent, run, setDefaultOpenAIClient, setOpenAIAPI, setTracingDisabled, tool } from "@openai/agents";
import OpenAI from "openai";
import { z } from "zod";

setTracingDisabled(true);
setDefaultOpenAIClient(new OpenAI());
setOpenAIAPI(process.argv[2] === "chat" ? "chat_completions" : "responses");
const look = tool({
  name: "look",
  description: "what a file says",
  parameters: z.object({ path: z.string(), line: z.number().nullable() }),
  execute: async ({ path }) => `${path}: kiwi`,
});
const agent = new Agent({ name: "clerk", instructions: "You are a clerk.", model: "shop", tools: [look] });
const result = await run(agent, process.env.SANDGATE_PROMPT);
console.log(result.finalOutput);
