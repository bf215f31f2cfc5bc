// Uploads on the page Files, streamed and with progress.
import { uploader } from "./upload.js";

const place = document.getElementById("upload");
if (place) uploader(place, () => location.reload());
