// The Vercel AI SDK: node ai_sdk.mjs chat|responses|messages. Three steps with a tool; prints the final text.
import { generateText, stepCountIs, tool } from "ai";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { z } from "zod";

const [baseURL, apiKey] = [process.env.OPENAI_BASE_URL, process.env.OPENAI_API_KEY];
const models = {
  chat: () => createOpenAICompatible({ name: "sandgate", baseURL, apiKey })("shop"),
  responses: () => createOpenAI({ baseURL, apiKey }).responses("shop"),
  messages: () => createAnthropic({ baseURL: process.env.ANTHROPIC_BASE_URL + "/v1", apiKey })("shop"),
};
const look = tool({
  description: "what a file says",
  inputSchema: z.object({ path: z.string(), line: z.number().optional() }),
  execute: async ({ path }) => `${path}: kiwi`,
});
const { text } = await generateText({
  model: models[process.argv[2]](),
  system: "You are a clerk.",
  prompt: process.env.SANDGATE_PROMPT,
  tools: { look },
  stopWhen: stepCountIs(5),
});
console.log(text);
