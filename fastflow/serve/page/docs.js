// The commands of this page name the server that it came from.
"use strict";

for (const command of document.querySelectorAll("pre code")) {
  command.textContent = command.textContent.replaceAll("http://127.0.0.1:8080/", new URL(".", location));
}
