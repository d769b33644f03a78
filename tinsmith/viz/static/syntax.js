"use strict";
// Syntax highlighting by highlight.js (BSD 3-Clause). Its grammars are used for Python, C, LLVM IR and Rust (WGSL);
// CUDA extends C++, and assembly (GNU x86 and ARM, PTX) and listings of UOps have grammars of their own.

const MOST_COLORED = 600000; // characters; a longer text stays plain, so that the page responds
const coloredTexts = new Map();

hljs.registerLanguage("cuda", (h) => {
  const cpp = hljs.getLanguage("cpp").rawDefinition(h), words = cpp.keywords;
  return { ...cpp, name: "CUDA", aliases: ["cu"], keywords: { ...words,
    keyword: [...words.keyword, "__global__", "__device__", "__host__", "__shared__", "__constant__", "__restrict__",
      "__launch_bounds__", "__forceinline__", "__grid_constant__", "__align__"],
    built_in: [...words.built_in, "threadIdx", "blockIdx", "blockDim", "gridDim", "warpSize", "__syncthreads", "__shfl_sync",
      "__shfl_xor_sync", "__shfl_down_sync", "__syncwarp", "__ldg", "half", "half2", "float2", "float4", "__nv_bfloat16"] } };
});

hljs.registerLanguage("assembly", (h) => ({ name: "Assembly", case_insensitive: true, contains: [
  h.C_BLOCK_COMMENT_MODE, h.COMMENT("//", "$"), h.COMMENT("(?:^|\\s)(?:#|;)(?=\\s|$)", "$"), h.QUOTE_STRING_MODE,
  { className: "symbol", begin: /^\s*[\w.$@]+(?=:)/ },
  { className: "meta", begin: /\.[a-z_][\w.]*/ },
  { begin: [/^\s*/, /(?:@!?%?\w+\s+)?/, /[a-z][\w.]*/], beginScope: { 2: "variable", 3: "keyword" } },
  { className: "variable", begin: /%[\w.]+|\b(?:[wxbhsdqvz]\d{1,2}|[sl]p|xzr|wzr)\b/ },
  { className: "number", begin: /[$#]?-?\b0x[0-9a-f]+\b|[$#]?-?\b\d[\d.]*(?:e[-+]?\d+)?\b|\b0[fd][0-9a-f]{8,16}\b/ },
] }));

hljs.registerLanguage("uops", () => ({ name: "UOps", contains: [
  { className: "number", begin: /\b-?\d+(?:\.\d+)?(?:e[-+]?\d+)?\b/ },
  { className: "type", begin: /\b(?:PtrDType|dtypes\.\w+)/ },
  { className: "keyword", begin: /\bUOps\.\w+/ },
  { className: "title", begin: /\b[A-Z][A-Z_]+\b/ },
] }));

// The language of a device's text, by what only it has; null if none is known.
function languageOf(text) {
  if (/__global__|__device__|blockIdx/.test(text)) return "cuda";
  if (/^(define|declare|target |source_filename)/m.test(text)) return "llvm";
  if (/@compute|var<storage/.test(text)) return "rust"; // WGSL has the words of Rust
  if (/\b(void|float|int)\b.*[({]/.test(text)) return "cpp";
  return null;
}

// The lines of a text as HTML, with the tokens of a language marked; null if it stays plain.
function coloredLines(text, language) {
  if (!language || text.length > MOST_COLORED || !hljs.getLanguage(language)) return null;
  const key = `${language} ${text}`;
  if (!coloredTexts.has(key)) {
    if (coloredTexts.size > 40) coloredTexts.clear();
    coloredTexts.set(key, htmlLines(hljs.highlight(text, { language, ignoreIllegals: true }).value));
  }
  return coloredTexts.get(key);
}

// A token that spans lines, such as a comment, is closed at the end of each and opened again.
function htmlLines(html) {
  const lines = [], open = [];
  let line = "";
  for (const [part] of html.matchAll(/<span[^>]*>|<\/span>|\n|[^<\n]+/g)) {
    if (part === "\n") { lines.push(line + "</span>".repeat(open.length)); line = open.join(""); continue; }
    if (part.startsWith("<span")) open.push(part);
    else if (part === "</span>") open.pop();
    line += part;
  }
  return [...lines, line];
}

const coloredRows = (rows, language) => coloredLines(rows.map((r) => r[0]).join("\n"), language);
