// An environment in another language: a counter for each session, one tool, a reward for reaching what was wanted.
"use strict";
const http = require("http");
const { randomUUID } = require("crypto");

const sessions = new Map();

function answer(path, id, asked) {
  if (path === "/") return [200, { alive: true }];
  if (path === "/seed_session") {
    sessions.set(id, { sum: 0, calls: 0 });
    return [200, {}];
  }
  const session = sessions.get(id);
  if (session === undefined) return [410, { error: "no session" }];
  if (path === "/add") {
    if (!Number.isInteger(asked.by)) return [422, { error: "`by` is a whole number" }];
    session.sum += asked.by;
    session.calls += 1;
    return [200, { sum: session.sum }];
  }
  if (path === "/verify") {
    sessions.delete(id);
    const reward = session.sum === asked.want ? 1.0 : 0.0;
    return [200, { ...asked, reward, calls: session.calls, language: "JavaScript" }];
  }
  return [404, { error: `no ${path} here` }];
}

const server = http.createServer((request, response) => {
  const pieces = [];
  request.on("data", (piece) => pieces.push(piece));
  request.on("end", () => {
    const cookie = /session=([^;]+)/.exec(request.headers.cookie || "");
    const id = cookie ? cookie[1] : randomUUID();
    let said;
    try {
      const body = Buffer.concat(pieces).toString();
      said = answer(request.url, id, body ? JSON.parse(body) : {});
    } catch (error) {
      said = [400, { error: String(error) }];
    }
    response.writeHead(said[0], { "Content-Type": "application/json", "Set-Cookie": `session=${id}; Path=/` });
    response.end(JSON.stringify(said[1]));
  });
});

server.listen(Number(process.env.PORT), process.env.HOST, () => console.log(`counting at ${process.env.PORT}`));
